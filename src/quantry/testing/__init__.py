"""Conformance suites for every extension point: inherit one in a test file and supply its fixture.

Each suite is imported from its own module, because only the suites need pytest.
"""
