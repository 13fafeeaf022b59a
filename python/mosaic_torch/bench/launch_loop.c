// Launches one kernel many times and returns the mean cost of a launch in nanoseconds. A loop in Python would cost
// more than what is measured. With a grid of 0 blocks the driver refuses each launch at once: what is left is the
// price of whatever stands before the driver.
#include <stdint.h>
#include <time.h>

typedef int (*launch_fn)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                         unsigned shared_bytes, void *stream, void **params, void **extra);

double launch_loop(launch_fn launch, void *function, void *stream, unsigned blocks, uint64_t count, int *last_result)
{
    struct timespec begin, end;
    int result = 0;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (uint64_t i = 0; i < count; i++)
        result = launch(function, blocks, 1, 1, 32, 1, 1, 0, stream, 0, 0);
    clock_gettime(CLOCK_MONOTONIC, &end);
    *last_result = result;
    return ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / (double)count;
}
