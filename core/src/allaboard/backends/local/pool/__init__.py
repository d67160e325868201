"""The machine's slots: who gets CPUs, GPUs and ports, in which order, and how a run waits for them."""
