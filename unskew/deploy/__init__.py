"""What an operator needs: certificates, folders, launching and stopping processes."""
