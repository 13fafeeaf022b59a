"""A worker process: one agent in the main thread, further ones in threads of their own."""

import argparse
import ctypes
import os
import signal
import threading
from multiprocessing.connection import Connection

from .agent import Agent, Shared
from .block import Block

PR_SET_PDEATHSIG = 1


def main(argv):
    """Serves until every agent was told to quit, or the coordinator is gone."""
    parser = argparse.ArgumentParser(prog="worker")
    parser.add_argument("--agent", action="append", required=True, help="name=fd; the first one gets the main thread")
    parser.add_argument("--block", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--control", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--parent", type=int, default=0, help="end with this process")
    args = parser.parse_args(argv)
    if args.parent:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != args.parent:
            return 1
    shared = Shared(args.device, args.control, Block(args.block), args.tiny, args.seed)
    agents = []
    for text in args.agent:
        name, fd = text.split("=")
        agents.append(Agent(name, Connection(int(fd)), shared))
    threads = [threading.Thread(target=agent.serve, name=agent.name) for agent in agents[1:]]
    for thread in threads:
        thread.start()
    agents[0].serve()
    for thread in threads:
        thread.join()
    return 0
