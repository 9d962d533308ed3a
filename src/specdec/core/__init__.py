"""Core: the engine and its types. It imports no other package of specdec."""
