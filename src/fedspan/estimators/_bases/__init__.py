"""What estimators of one kind share: those of views, and classifiers."""
