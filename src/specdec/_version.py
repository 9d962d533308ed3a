"""The one place where the version of specdec is written."""

__version__ = "0.1.0"
