"""What is measured on one accelerator: each part a module with `measure(size)`.

    python -m benchmarks.accelerator OUT [--minutes 8] [--tiny] [--parts step,norms]

Every part runs in a process of its own and ends as OUT/PART.json; parts that are there
are not run again, so the same command continues where the last one was cut.
"""
