from gradwire.command import refuse_former

if __name__ == "__main__":
    refuse_former("python -m workloads.sample_images", "python -m gradwire sample_images")
