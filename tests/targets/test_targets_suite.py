"""Every built-in target passes the conformance suite."""

import pytest

from quantry.targets import TARGETS, Target
from quantry.testing.target_suite import TargetSuite


class TestBuiltInTargets(TargetSuite):
    @pytest.fixture(params=TARGETS.values(), ids=lambda target: target.name)
    def target(self, request: pytest.FixtureRequest) -> Target:
        found = request.param
        assert isinstance(found, Target)
        return found
