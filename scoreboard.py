from gradwire.command import refuse_former

if __name__ == "__main__":
    refuse_former("python scoreboard.py", "python -m gradwire scoreboard")
