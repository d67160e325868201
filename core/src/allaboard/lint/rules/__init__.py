"""The rules, by what they look at. Each is a `allaboard.lint.rule.Rule` at the top of a module."""
