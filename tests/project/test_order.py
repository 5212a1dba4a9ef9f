"""In which order the tests begin."""

LONG = ["tests/runtime", "tests/project"]


def test_those_that_start_processes_begin_first(request):
    begun = ["/".join(item.nodeid.split("/")[:2]) for item in request.session.items]

    ranks = [LONG.index(one) if one in LONG else len(LONG) for one in begun]

    assert ranks == sorted(ranks)
