"""In which order the tests begin."""

LONG = ("deploy", "ray", "browser", "process")


def test_those_that_start_programs_begin_first(request):
    ranks = [
        next((i for i, mark in enumerate(LONG) if item.get_closest_marker(mark)), 9)
        for item in request.session.items
    ]

    assert ranks == sorted(ranks)
