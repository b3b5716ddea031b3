"""The model in memory: load, save, edit, segments, weights, shapes, passes, and the plan that annotates it."""
