"""What tests find before they import: eight simulated JAX devices, threads that sleep, the folders of tests."""

import os
import sys
from pathlib import Path

import hypothesis

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
# Threads that have no work sleep: spinning, those of one test process take the cores of the other.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, str(Path(__file__).parent.parent))  # for `benchmarks`, which is not installed
sys.path.insert(0, str(Path(__file__).parent / "support"))  # for `oracle`, `support` and others

# A first call compiles, and machines are shared. Every run draws the same inputs, so that only a change makes one fail.
SLOW = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much]
hypothesis.settings.register_profile("any machine", deadline=None, derandomize=True, suppress_health_check=SLOW)
hypothesis.settings.load_profile("any machine")
