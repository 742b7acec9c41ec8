"""What protects a client's rows: noise that is calibrated and charged, masks that hold, attacks that were tried."""
