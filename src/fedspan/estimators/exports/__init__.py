"""What others read: steps of scikit-learn and nodes of ONNX, built from plain arrays and the agreement on columns."""
