raise ImportError("left out of the workers of this test, see tests/conftest.py")
