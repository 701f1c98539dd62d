"""Steps of optimizers, clipping and schedules; every operation is rounded to float32."""
