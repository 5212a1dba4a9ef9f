"""How many threads arithmetic takes beside PyTorch's: those of NumPy, SciPy and others.

A BLAS has a thread for each core unless it is told otherwise. Where several processes
compute at the same time these wait for each other more than they work, and what several
threads have added up has other last bits.
"""

from threadpoolctl import threadpool_limits

from fcl_flower.algorithms.registry import Algorithm


def limited_threads(algorithm: Algorithm, threads: int) -> threadpool_limits:
    """Limit the threads of all libraries in this process, from now on.

    Args:
        algorithm: both its sides are imported first, and with them what they compute
            with.
        threads: at most so many for each library, at least 1.

    Returns:
        A context at whose end all have as many as before.
    """
    algorithm.load_server()
    algorithm.load_client()
    return threadpool_limits(threads)
