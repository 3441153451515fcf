"""From a data set to a model, and from held-out images to its calibration.

`config` and `presets` say how to train, `trainer` does it in a folder (`runfolder`) by the rules of `optim`, on one
process or many (`distributed`); `start` is what a run takes over from another model; `calibrate` fits what is fitted
after training, to images that are `held_out`.
"""
