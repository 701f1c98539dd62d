"""All laws of float32 functions: a law that has a row here is bound to the frameworks."""

from __future__ import annotations

from qcore.numerics.elementary.arithmetic import ADD, DIV, MAXIMUM, MINIMUM, MUL, POW, SUB
from qcore.numerics.elementary.laws import ELEMENTARY
from qcore.numerics.elementary.piecewise import PIECEWISE, PRELU
from qcore.numerics.norms import BATCH_NORM, LAYER_NORM, MOVING_AVERAGE, NORMALIZE
from qcore.numerics.optimizers.adam import ADAM
from qcore.numerics.optimizers.clipping import CLIP
from qcore.numerics.optimizers.schedules import RATE
from qcore.numerics.optimizers.sgd import SGD
from qcore.numerics.reductions import LOGSUMEXP, MAX, MEAN, NORM, SUM, VAR
from qcore.numerics.softmax import CROSS_ENTROPY, LOG_SOFTMAX, MSE, SOFTMAX
from qcore.numerics.training.dropout import DROPOUT
from qcore.numerics.training.embedding import EMBEDDING
from qcore.numerics.training.moves import BROADCAST, COMPARED, FITTING, GREATEST_PLACE, ORDER, PAD, PLACES, WHERE
from qcore.numerics.training.parts import CHUNK, NARROW, SETTLE
from qcore.numerics.training.pooling import AVG_POOL, MAX_POOL
from qcore.numerics.training.products import MASKED

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
