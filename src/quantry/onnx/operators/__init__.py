"""Custom operators, where AMD Quark has them."""
