"""Tables of facts that import nothing but the standard library, so that every room may read them."""
