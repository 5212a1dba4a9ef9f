"""The command ``fcl`` under a profiler of processor time.

python profiled.py FILE ARGUMENTS OF FCL ...: FILE gets pstats.
"""

import cProfile
import sys
import time

from fcl_flower.cli.main import main

file, *arguments = sys.argv[1:]
sys.argv = ["fcl", *arguments]
profile = cProfile.Profile(time.process_time)
try:
    profile.runcall(main)
finally:
    profile.dump_stats(file)
