"""What estimators share: their base class, what classifiers and models of views have in common, labels, exports."""
