"""``python -m tlt_engine``: the command ``tlt-engine``."""

from tlt_engine.cli.main import main

main()
