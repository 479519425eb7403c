"""The learned drafter: one windowed EAGLE-3 layer, the same for worker and trainer."""
