"""Can the simulator predict a GPU that has not been measured yet? Predict first, then measure the same quantities, then compare.

Predictions are committed before anything is measured, and never changed: the records show how well the simulator did then, not how well it
does now. Limits: steps are those of `calibration.measure.ddp_steps` on one GPU, without input; a loader's rate is that of Pillow.
"""
