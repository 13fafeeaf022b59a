"""The measuring harness: ``python -m mosaic_torch.bench``.

A coordinator that never touches CUDA drives *agents* (one thread each, in one worker process or in several) over
pipes. An agent builds its models once, warms them in its own thread, and then runs segment after segment, so that the
variants of one comparison alternate within the same warm processes.

    workloads   the jobs, in fixed shapes with seeded random weights
    arrivals    when requests arrive
    loops       the two inner loops: HP requests, BE iterations
    agent       what an agent can be told to do; worker: the process around it; fleet: the coordinator's side
    control     the only place that calls mosaic_torch (or nothing, or a stand-in for tests)
    plan        which segments, in which order, within which time
    summary     raw segments to metrics; records: the files; report: the tables
    topics      bound, overhead, coverage, identity, death, micro
"""
