$ pip install pkgs/*.whl
