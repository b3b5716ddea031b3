"""Conformance suites: inherit the one of your extension point in a test file and supply its fixtures.

================  ==========================================================
extension point   suite
================  ==========================================================
operator          `quantry.testing.rule_suite.RuleSuite`
calibration       `quantry.testing.range_suite.RangeMethodSuite`
format            `quantry.testing.recipe_suite.FormatSuite`
preset            `quantry.testing.recipe_suite.PresetSuite`
graph pass        `quantry.testing.pass_suite.PassSuite`
finetuning        `quantry.testing.tuning_suite.TuningSuite`
metric            `quantry.testing.metric_suite.MetricSuite`
evaluator         `quantry.testing.evaluator_suite.EvaluatorSuite`
target            `quantry.testing.target_suite.TargetSuite`
store             `quantry.testing.store_suite.StoreSuite`
================  ==========================================================

Each suite is imported from its own module, because only the suites need pytest.
"""
