"""All laws of float32 functions: a law that has a row here is bound to the frameworks."""

from __future__ import annotations

from qcore.reproducible.elementary.arithmetic import ADD, DIV, MAXIMUM, MINIMUM, MUL, POW, SUB
from qcore.reproducible.elementary.laws import ELEMENTARY
from qcore.reproducible.elementary.piecewise import PIECEWISE, PRELU
from qcore.reproducible.norms import BATCH_NORM, LAYER_NORM, MOVING_AVERAGE, NORMALIZE
from qcore.reproducible.optimizers.adam import ADAM
from qcore.reproducible.optimizers.clipping import CLIP
from qcore.reproducible.optimizers.schedules import RATE
from qcore.reproducible.optimizers.sgd import SGD
from qcore.reproducible.reductions import LOGSUMEXP, MAX, MEAN, NORM, SUM, VAR
from qcore.reproducible.softmax import CROSS_ENTROPY, LOG_SOFTMAX, MSE, SOFTMAX
from qcore.reproducible.training.dropout import DROPOUT
from qcore.reproducible.training.embedding import EMBEDDING
from qcore.reproducible.training.moves import BROADCAST, COMPARED, FITTING, GREATEST_PLACE, ORDER, PAD, PLACES, WHERE
from qcore.reproducible.training.parts import CHUNK, NARROW, SETTLE
from qcore.reproducible.training.pooling import AVG_POOL, MAX_POOL
from qcore.reproducible.training.products import MASKED

LAWS = (
    *ELEMENTARY.values(),
    *PIECEWISE.values(),
    *(PRELU, ADD, SUB, MUL, DIV, POW, MAXIMUM, MINIMUM),
    *(SUM, MEAN, VAR, NORM, MAX, LOGSUMEXP),
    *(SOFTMAX, LOG_SOFTMAX, CROSS_ENTROPY, MSE),
    *(LAYER_NORM, BATCH_NORM, NORMALIZE, MOVING_AVERAGE),
    *(EMBEDDING, DROPOUT, MAX_POOL, AVG_POOL, MASKED),
    *(SETTLE, CHUNK, NARROW, PAD, BROADCAST, WHERE, COMPARED, FITTING, GREATEST_PLACE, ORDER, PLACES),
    *(ADAM, SGD, CLIP, RATE),
)
