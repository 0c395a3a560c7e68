#include "base/device/mirror.h"

status mirror_create(struct device *dev, struct stream *stream, size_t bytes, const char *what,
                     struct mirror *out)
{
    *out = (struct mirror){.device = dev, .stream = stream, .bytes = bytes};
    TRY(device_host_allocate(dev, bytes, what, &out->host));
    if (device_is_host(dev)) {
        out->device_data = out->host;
        return STATUS_OK;
    }
    status result = device_allocate(dev, bytes, what, &out->device_data);
    if (result != STATUS_OK) {
        mirror_destroy(out);
    }
    return result;
}

void mirror_destroy(struct mirror *m)
{
    if (m->device != NULL) {
        if (m->device_data != m->host) {
            device_release(m->device, m->device_data, m->bytes);
        }
        device_host_release(m->device, m->host, m->bytes);
    }
    *m = (struct mirror){0};
}

status mirror_upload(const struct mirror *m, size_t first, size_t bytes)
{
    return m->device_data == m->host
               ? STATUS_OK
               : device_copy(m->device, m->stream, (char *)m->device_data + first,
                             (const char *)m->host + first, bytes);
}

status mirror_download_and_wait(const struct mirror *m, size_t first, size_t bytes)
{
    return m->device_data == m->host ? STATUS_OK
                                     : device_read(m->device, m->stream, (char *)m->host + first,
                                                   (const char *)m->device_data + first, bytes);
}

status mirror_download(const struct mirror *m, size_t first, size_t bytes)
{
    return m->device_data == m->host ? STATUS_OK
                                     : device_copy(m->device, m->stream, (char *)m->host + first,
                                                   (const char *)m->device_data + first, bytes);
}
