from bso_client.energy.gpus import LimitedGpu, common_limits_w


def gpu(uuid: str, *, lowest_w: float = 100, highest_w: float = 300, default_w: float = 250) -> LimitedGpu:
    return LimitedGpu(
        index=0,
        uuid=uuid,
        name="A100",
        memory_mib=40960,
        lowest_w=lowest_w,
        highest_w=highest_w,
        default_w=default_w,
    )


def test_gpus_are_driven_between_the_limits_that_all_of_them_take() -> None:
    gpus = [gpu("a"), gpu("b", lowest_w=150, highest_w=280)]
    assert common_limits_w(gpus, {"a": 250, "b": 250}) == (280, 150)


def test_a_cap_below_the_default_is_respected() -> None:
    assert common_limits_w([gpu("a"), gpu("b")], {"a": 250, "b": 200}) == (200, 100)
