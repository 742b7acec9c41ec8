"""Estimators of tables whose columns are spread over clients; each file is one model that users import."""
