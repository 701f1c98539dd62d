"""The steps of the workflow: settings, fusing, preparing, training, converting."""
