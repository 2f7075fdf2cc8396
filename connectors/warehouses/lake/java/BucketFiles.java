package cdcworker;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedOutputStream;
import java.io.ByteArrayOutputStream;
import java.io.EOFException;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSInputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/**
 * The files of a bucket, by way of the sink's process: it has the credentials, repeats what a store does not answer, and makes a
 * file that is not to be overwritten for one writer only.
 *
 * It is compiled by Spark's own compiler, which knows no type parameters: hence the casts.
 */
public final class BucketFiles extends FileSystem {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int BLOCK = 4 * 1024 * 1024;
    private static final long SPLIT = 128L * 1024 * 1024;
    private static volatile String socket = "";
    static volatile String scratch = "";

    private URI uri;
    private Path working;

    /** From here on Hadoop opens the bucket with this class, and asks who listens at the socket's path. */
    public void install(String path, String folder, String bucket, Configuration settings) throws IOException {
        socket = path;
        scratch = folder;
        settings.setClassLoader(BucketFiles.class.getClassLoader());
        URI name = URI.create(bucket);
        settings.set("fs." + name.getScheme() + ".impl", BucketFiles.class.getName());
        FileSystem found = FileSystem.get(name, settings);
        if (!(found instanceof BucketFiles)) {
            throw new IOException("another file system has this bucket");
        }
    }

    public void initialize(URI name, Configuration settings) throws IOException {
        super.initialize(name, settings);
        uri = URI.create(name.getScheme() + "://" + name.getAuthority());
        working = new Path(uri.toString() + "/");
    }

    public String getScheme() {
        return uri.getScheme();
    }

    public URI getUri() {
        return uri;
    }

    public Path getWorkingDirectory() {
        return working;
    }

    public void setWorkingDirectory(Path path) {
        working = path;
    }

    public long getDefaultBlockSize() {
        return SPLIT;
    }

    public FSDataInputStream open(Path path, int size) throws IOException {
        FileStatus found = getFileStatus(path);
        if (found.isDirectory()) {
            throw new FileNotFoundException(path + " is a folder");
        }
        return new FSDataInputStream(new Content(this, path, found.getLen()));
    }

    public FSDataOutputStream create(Path path, FsPermission permission, boolean overwrite, int size, short copies,
            long block, Progressable progress) throws IOException {
        return new FSDataOutputStream(new Made(this, path, overwrite), null);
    }

    public FSDataOutputStream createNonRecursive(Path path, FsPermission permission, java.util.EnumSet flags, int size,
            short copies, long block, Progressable progress) throws IOException {
        boolean overwrite = flags.contains(org.apache.hadoop.fs.CreateFlag.OVERWRITE);
        return create(path, permission, overwrite, size, copies, block, progress);
    }

    public FSDataOutputStream append(Path path, int size, Progressable progress) throws IOException {
        throw new UnsupportedOperationException("an object is not appended to");
    }

    /**
     * Of a rename that fails it is not known whether it was done, or will be. Iceberg makes a commit again that ends in an
     * IOException, and makes a staged snapshot current which it then finds in the table: hence an exception of another kind.
     */
    public boolean rename(Path path, Path target) throws IOException {
        Map question = question("rename", path);
        question.put("target", key(target));
        try {
            return Boolean.TRUE.equals(ask(question, path).said.get("there"));
        } catch (FileNotFoundException exc) {
            throw exc;
        } catch (IOException exc) {
            throw new UncheckedIOException(exc);
        }
    }

    public boolean delete(Path path, boolean recursive) throws IOException {
        Map question = question("delete", path);
        question.put("recursive", Boolean.valueOf(recursive));
        return Boolean.TRUE.equals(ask(question, path).said.get("there"));
    }

    public boolean mkdirs(Path path, FsPermission permission) {
        return true;
    }

    public FileStatus getFileStatus(Path path) throws IOException {
        return statusOf(ask(question("status", path), path).said, path);
    }

    public FileStatus[] listStatus(Path path) throws IOException {
        Map said = ask(question("list", path), path).said;
        if (said.get("self") != null) {
            return new FileStatus[] {statusOf((Map) said.get("self"), path)};
        }
        List folders = (List) said.get("folders");
        List files = (List) said.get("files");
        FileStatus[] out = new FileStatus[folders.size() + files.size()];
        for (int i = 0; i < folders.size(); i++) {
            out[i] = folder(new Path(path, (String) folders.get(i)));
        }
        for (int i = 0; i < files.size(); i++) {
            List each = (List) files.get(i);
            long size = ((Number) each.get(1)).longValue();
            long modified = ((Number) each.get(2)).longValue();
            out[folders.size() + i] = file(size, modified, new Path(path, (String) each.get(0)));
        }
        return out;
    }

    private FileStatus statusOf(Map said, Path path) {
        if (said.get("folder") != null) {
            return folder(path);
        }
        return file(((Number) said.get("size")).longValue(), ((Number) said.get("modified")).longValue(), path);
    }

    private FileStatus folder(Path path) {
        return new FileStatus(0, true, 1, SPLIT, 0, makeQualified(path));
    }

    private FileStatus file(long size, long modified, Path path) {
        return new FileStatus(size, false, 1, SPLIT, modified, makeQualified(path));
    }

    byte[] read(Path path, long first, long size) throws IOException {
        Map question = question("read", path);
        question.put("first", Long.valueOf(first));
        question.put("size", Long.valueOf(size));
        return ask(question, path).content;
    }

    void put(Path path, File file, boolean overwrite) throws IOException {
        Map question = question("put", path);
        question.put("scratch", file.getName());
        question.put("overwrite", Boolean.valueOf(overwrite));
        ask(question, path);
    }

    private Map question(String step, Path path) {
        Map question = new HashMap();
        question.put("step", step);
        question.put("bucket", uri.getAuthority());
        question.put("key", key(path));
        return question;
    }

    private String key(Path path) {
        String found = makeQualified(path).toUri().getPath();
        return found.startsWith("/") ? found.substring(1) : found;
    }

    private static Answer ask(Map question, Path path) throws IOException {
        byte[] found;
        SocketChannel channel = SocketChannel.open(UnixDomainSocketAddress.of(socket));
        try {
            ByteBuffer out = ByteBuffer.wrap(JSON.writeValueAsBytes(question));
            while (out.hasRemaining()) {
                channel.write(out);
            }
            channel.shutdownOutput();
            ByteArrayOutputStream in = new ByteArrayOutputStream();
            ByteBuffer part = ByteBuffer.allocate(65536);
            while (channel.read(part) >= 0) {
                in.write(part.array(), 0, part.position());
                part.clear();
            }
            found = in.toByteArray();
        } finally {
            channel.close();
        }
        int end = 0;
        while (end < found.length && found[end] != '\n') {
            end++;
        }
        if (end == found.length) {
            throw new IOException("cdcworker does not answer for the object store");
        }
        Answer answer = new Answer();
        answer.said = (Map) JSON.readValue(found, 0, end, Map.class);
        answer.content = java.util.Arrays.copyOfRange(found, end + 1, found.length);
        Object error = answer.said.get("error");
        if ("missing".equals(error)) {
            throw new FileNotFoundException(path + " is not there");
        }
        if ("exists".equals(error)) {
            throw new FileAlreadyExistsException(path + " is there already");
        }
        if (error != null) {
            throw new IOException("cdcworker refuses " + answer.said.get("message"));
        }
        return answer;
    }

    static final class Answer {
        Map said;
        byte[] content;
    }

    /** What a file holds, read in blocks. */
    static final class Content extends FSInputStream {
        private final BucketFiles files;
        private final Path path;
        private final long size;
        private long at = 0;
        private long first = 0;
        private byte[] block = new byte[0];

        Content(BucketFiles files, Path path, long size) {
            this.files = files;
            this.path = path;
            this.size = size;
        }

        public synchronized void seek(long to) throws IOException {
            if (to < 0 || to > size) {
                throw new EOFException("a place outside of " + path);
            }
            at = to;
        }

        public synchronized long getPos() {
            return at;
        }

        public boolean seekToNewSource(long to) {
            return false;
        }

        public synchronized int available() {
            return (int) Math.min(size - at, (long) Integer.MAX_VALUE);
        }

        public synchronized int read() throws IOException {
            byte[] one = new byte[1];
            return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
        }

        public synchronized int read(byte[] into, int offset, int length) throws IOException {
            int found = read(at, into, offset, length);
            at += Math.max(found, 0);
            return found;
        }

        public synchronized int read(long position, byte[] into, int offset, int length) throws IOException {
            if (length == 0) {
                return 0;
            }
            if (position >= size) {
                return -1;
            }
            if (position < first || position >= first + block.length) {
                block = files.read(path, position, Math.min(size - position, (long) Math.max(length, BLOCK)));
                first = position;
                if (block.length == 0) {
                    throw new EOFException(path + " is shorter than it was");
                }
            }
            int from = (int) (position - first);
            int count = Math.min(length, block.length - from);
            System.arraycopy(block, from, into, offset, count);
            return count;
        }
    }

    /** A file that is put when it is closed. */
    static final class Made extends OutputStream {
        private final BucketFiles files;
        private final Path path;
        private final boolean overwrite;
        private final File file;
        private final OutputStream out;
        private boolean closed = false;

        Made(BucketFiles files, Path path, boolean overwrite) throws IOException {
            this.files = files;
            this.path = path;
            this.overwrite = overwrite;
            this.file = File.createTempFile("put", "", new File(scratch));
            this.out = new BufferedOutputStream(new FileOutputStream(file), 65536);
        }

        public void write(int one) throws IOException {
            out.write(one);
        }

        public void write(byte[] from, int offset, int length) throws IOException {
            out.write(from, offset, length);
        }

        public void flush() throws IOException {
            out.flush();
        }

        public void close() throws IOException {
            if (closed) {
                return;
            }
            closed = true;
            out.close();
            files.put(path, file, overwrite);
        }
    }
}
