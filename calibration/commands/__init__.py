"""Which commands does ``python -m calibration`` have? One file for each question that they answer."""
