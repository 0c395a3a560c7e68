/* In builds with the address sanitizer only: a plugin that a library unloads stays in memory, so that
 * the leak checker can still name it, and leak.txt can tell Open MPI's plugins from us. */
int dlclose(void *library);

int dlclose(void *library)
{
    (void)library;
    return 0;
}
