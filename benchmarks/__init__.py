"""Side-by-side measurements of quantry and its peers: see README.md."""
