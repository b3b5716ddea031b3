"""Reading and editing a graph: what every pass needs."""
