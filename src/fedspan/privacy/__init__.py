"""What leaves a client is bounded, noised, masked and attacked: one module for each."""
