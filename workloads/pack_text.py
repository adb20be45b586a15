from gradwire.command import refuse_former

if __name__ == "__main__":
    refuse_former("python -m workloads.pack_text", "python -m gradwire.language.pack_text")
