"""A small shared-memory block: what the coordinator and the agents must see of each other *during* a segment.

Words are aligned 64-bit integers, each written by one side only; x86-64 stores them whole.
"""

import mmap
import os

WORDS = (
    "be_stop",  # coordinator: BE ends its segment after the iteration it is in
    "be_running",  # BE: inside its loop
    "be_iterations",  # BE: completed since the segment began
    "be_last_done_ns",  # BE: when the last one completed
    "hp_completed",  # HP: requests completed since the segment began
    "hp_inside",  # HP: inside a request right now
    "hp_stop",  # coordinator: HP ends its segment early
)


class Block:
    """Opens (or makes) the block at ``path``."""

    def __init__(self, path, create=False):
        size = 8 * len(WORDS)
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
        fd = os.open(path, flags, 0o600)
        try:
            if create:
                os.ftruncate(fd, size)
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self._words = memoryview(self._map).cast("q")

    def get(self, word):
        return self._words[WORDS.index(word)]

    def set(self, word, value):
        self._words[WORDS.index(word)] = value

    def cell(self, word):
        """A getter and a setter without the look-up by name, for the inner loops."""
        index, words = WORDS.index(word), self._words

        def get():
            return words[index]

        def put(value):
            words[index] = value

        return get, put

    def reset(self):
        for index in range(len(WORDS)):
            self._words[index] = 0
