"""Does the simulator foretell a GPU that nobody here has measured? Predict first, then measure the same, then compare.

Predictions are committed before anything is measured, and stay as they were: the records say how well the simulator did, not how well it
does since. Limits: steps are those of `calibration.measure.ddp_steps` on one GPU, without input; a loader's rate is that of Pillow.
"""
