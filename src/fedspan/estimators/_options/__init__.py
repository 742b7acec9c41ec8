"""How the options of an estimator become an algorithm."""
