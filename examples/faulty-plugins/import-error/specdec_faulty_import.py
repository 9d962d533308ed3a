"""A plugin that needs a module which is not there. The fault is meant."""

import a_module_that_is_not_installed  # noqa: F401
