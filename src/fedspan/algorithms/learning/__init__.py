"""Classifiers, trained on samples or on features that are spread over clients."""
