import argparse
import os
import sys

from example_project.demo import endings


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m example_project.demo",
        description="A box office on five real nodes, with customers that click twice.",
        epilog="Ctrl-C ends it. Whatever was started is ended, and no file is left.",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="five acts that end by themselves; the exit status is 0 if everything held",
    )
    return parser.parse_args()


if __name__ == "__main__":
    wanted = arguments()
    endings.install()
    os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
    if wanted.once:
        from example_project.demo.once import main
    else:
        from example_project.demo.forever import main
    with endings.foreground():
        sys.exit(main())
