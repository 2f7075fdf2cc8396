package cdcworker;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.locks.ReentrantLock;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.header.Header;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.api.java.function.FlatMapFunction;

/**
 * Reads ranges of Kafka's partitions inside Spark's tasks and hands them on as columns of bytes. Spark's source makes a
 * row of each record, copies it four times and has a consumer for each partition; this costs a tenth of it.
 *
 * It is compiled by Spark's own compiler when a session starts, which knows no type parameters: hence the casts.
 */
public final class Reader implements FlatMapFunction {
    private static final long serialVersionUID = 1L;
    private static final long POLL_MS = 50;
    private static final long EARLIEST = -2;
    /** Consumers of this process, by query and share: what they fetched ahead is there for the next batch. */
    private static final Map SLOTS = new HashMap();

    private final String query;
    private final HashMap settings;
    private final long quietMsMax;
    private final int pieceBytesMax;

    public Reader() {
        this("", new HashMap(), 0, 0);
    }

    private Reader(String query, HashMap settings, long quietMsMax, int pieceBytesMax) {
        this.query = query;
        this.settings = settings;
        this.quietMsMax = quietMsMax;
        this.pieceBytesMax = pieceBytesMax;
    }

    /** Python has the class by its loader only, and makes others from a first one. */
    public Reader of(String query, Map settings, long quietMsMax, int pieceBytesMax) {
        return new Reader(query, new HashMap(settings), quietMsMax, pieceBytesMax);
    }

    /** A task for each share; empty lines part them, and each has its number and a line `topic partition from to` per range. */
    public JavaRDD over(JavaSparkContext context, String shares) {
        List parts = Arrays.asList(shares.split("\n\n"));
        return context.parallelize(parts, parts.size()).flatMap(this);
    }

    public Iterator call(Object share) throws Exception {
        String[] lines = ((String) share).split("\n");
        List ranges = new ArrayList();
        for (int i = 1; i < lines.length; i++) {
            ranges.add(new Range(lines[i].split(" "), this.pieceBytesMax));
        }
        String name = this.query + "/" + lines[0];
        Slot slot = this.take(name);
        boolean done = false;
        try {
            slot.read(ranges, this.quietMsMax);
            done = true;
        } finally {
            if (!done) {
                drop(name, slot);
            }
            slot.lock.unlock();
        }
        List out = new ArrayList();
        for (Iterator it = ranges.iterator(); it.hasNext(); ) {
            out.addAll(((Range) it.next()).close());
        }
        return out.iterator();
    }

    /** The share's consumer, locked: a second attempt of a task waits for the first one. Those of queries before go. */
    private Slot take(String name) {
        while (true) {
            Slot slot;
            synchronized (SLOTS) {
                for (Iterator it = SLOTS.entrySet().iterator(); it.hasNext(); ) {
                    Map.Entry entry = (Map.Entry) it.next();
                    Slot other = (Slot) entry.getValue();
                    if (!((String) entry.getKey()).startsWith(this.query + "/") && other.lock.tryLock()) {
                        it.remove();
                        other.close();
                        other.lock.unlock();
                    }
                }
                slot = (Slot) SLOTS.get(name);
                if (slot == null) {
                    slot = new Slot(this.settings);
                    SLOTS.put(name, slot);
                }
            }
            slot.lock.lock();
            if (!slot.closed) {
                return slot;
            }
            slot.lock.unlock();
        }
    }

    private static void drop(String name, Slot slot) {
        synchronized (SLOTS) {
            if (SLOTS.get(name) == slot) {
                SLOTS.remove(name);
            }
        }
        slot.close();
    }

    /** A consumer, what it has read past the end of a range, and where each partition was left. */
    private static final class Slot {
        final ReentrantLock lock = new ReentrantLock();
        final HashSet assigned = new HashSet();
        final Map next = new HashMap();
        final Map ahead = new HashMap();
        final KafkaConsumer consumer;
        boolean closed;

        Slot(Map settings) {
            Properties properties = new Properties();
            properties.putAll(settings);
            this.consumer = new KafkaConsumer(properties);
        }

        void close() {
            this.closed = true;
            try {
                this.consumer.close(Duration.ZERO);
            } catch (RuntimeException e) {
                // It is gone either way.
            }
        }

        void read(List ranges, long quietMsMax) {
            Map open = this.open(ranges);
            this.consumer.pause(this.assigned);
            this.consumer.resume(open.keySet());
            long since = System.nanoTime();
            long before = -1;
            while (!open.isEmpty()) {
                ConsumerRecords records = this.consumer.poll(Duration.ofMillis(POLL_MS));
                for (Iterator it = records.partitions().iterator(); it.hasNext(); ) {
                    TopicPartition place = (TopicPartition) it.next();
                    ((Range) open.get(place)).takeAll(records.records(place).iterator(), this.left(place));
                }
                long reached = this.finish(open);
                if (reached != before) {
                    before = reached;
                    since = System.nanoTime();
                } else if ((System.nanoTime() - since) / 1000000L > quietMsMax) {
                    throw new TimeoutException("no records of a range came in time");
                }
            }
        }

        /** Sets the consumer to where the ranges begin; those that what was read ahead does not fill. */
        private Map open(List ranges) {
            Map open = new HashMap();
            for (Iterator it = ranges.iterator(); it.hasNext(); ) {
                Range range = (Range) it.next();
                open.put(range.place, range);
            }
            if (this.assigned.addAll(open.keySet())) {
                this.consumer.assign(this.assigned);
            }
            for (Iterator it = ranges.iterator(); it.hasNext(); ) {
                Range range = (Range) it.next();
                Long at = (Long) this.next.get(range.place);
                if (at == null || at.longValue() != range.from) {
                    this.left(range.place).clear();
                    if (range.from == EARLIEST) {
                        this.consumer.seekToBeginning(Collections.singletonList(range.place));
                    } else {
                        this.consumer.seek(range.place, range.from);
                    }
                }
                ArrayDeque left = this.left(range.place);
                while (!left.isEmpty() && ((ConsumerRecord) left.peekFirst()).offset() < range.to) {
                    range.take((ConsumerRecord) left.pollFirst());
                }
                if (!left.isEmpty()) {
                    this.next.put(range.place, Long.valueOf(range.to));
                    open.remove(range.place);
                }
            }
            return open;
        }

        /** Leaves out what is complete; how far all others are. */
        private long finish(Map open) {
            long reached = 0;
            List done = new ArrayList();
            for (Iterator it = open.values().iterator(); it.hasNext(); ) {
                Range range = (Range) it.next();
                long at = this.consumer.position(range.place);
                if (at >= range.to) {
                    this.next.put(range.place, Long.valueOf(range.to));
                    done.add(range.place);
                }
                reached += at;
            }
            this.consumer.pause(done);
            open.keySet().removeAll(done);
            return reached;
        }

        private ArrayDeque left(TopicPartition place) {
            ArrayDeque found = (ArrayDeque) this.ahead.get(place);
            if (found == null) {
                found = new ArrayDeque();
                this.ahead.put(place, found);
            }
            return found;
        }
    }

    /** Offsets of one partition, and its records so far. A piece is at most a little larger than its limit. */
    private static final class Range {
        final TopicPartition place;
        final long from;
        final long to;
        private final int pieceBytesMax;
        private final List pieces = new ArrayList();
        private Piece piece = new Piece();

        Range(String[] words, int pieceBytesMax) {
            this.place = new TopicPartition(words[0], Integer.parseInt(words[1]));
            this.from = Long.parseLong(words[2]);
            this.to = Long.parseLong(words[3]);
            this.pieceBytesMax = pieceBytesMax;
        }

        void takeAll(Iterator records, ArrayDeque left) {
            while (records.hasNext()) {
                ConsumerRecord record = (ConsumerRecord) records.next();
                if (record.offset() < this.to) {
                    this.take(record);
                } else {
                    left.add(record);
                }
            }
        }

        void take(ConsumerRecord record) {
            this.piece.take(record);
            if (this.piece.value.used + this.piece.key.used > this.pieceBytesMax) {
                this.close();
                this.piece = new Piece();
            }
        }

        List close() {
            if (this.piece.n > 0) {
                this.pieces.add(this.piece.bytes(this.place));
            }
            return this.pieces;
        }
    }

    private static final class Piece {
        final Column key = new Column();
        final Column value = new Column();
        int n;
        private long[] offsets = new long[1024];
        private int[] headers = new int[1025];
        private final Column names = new Column();
        private final Column texts = new Column();

        void take(ConsumerRecord record) {
            if (this.n == this.offsets.length) {
                this.offsets = Arrays.copyOf(this.offsets, 2 * this.n);
                this.headers = Arrays.copyOf(this.headers, 2 * this.n + 1);
            }
            this.offsets[this.n++] = record.offset();
            this.key.add((byte[]) record.key());
            this.value.add((byte[]) record.value());
            Header[] found = record.headers().toArray();
            for (int i = 0; i < found.length; i++) {
                this.names.add(found[i].key().getBytes(StandardCharsets.UTF_8));
                this.texts.add(found[i].value());
            }
            this.headers[this.n] = this.names.n;
        }

        byte[] bytes(TopicPartition place) {
            byte[] topic = place.topic().getBytes(StandardCharsets.UTF_8);
            int size = 16 + padded(topic.length) + 8 * this.n + padded(4 * (this.n + 1));
            size += this.key.size() + this.value.size() + this.names.size() + this.texts.size();
            ByteBuffer out = ByteBuffer.allocate(size).order(ByteOrder.LITTLE_ENDIAN);
            out.putInt(topic.length).putInt(place.partition()).putInt(this.n).putInt(this.names.n);
            out.put(topic).position(16 + padded(topic.length));
            out.asLongBuffer().put(this.offsets, 0, this.n);
            out.position(out.position() + 8 * this.n);
            out.asIntBuffer().put(this.headers, 0, this.n + 1);
            out.position(out.position() + padded(4 * (this.n + 1)));
            this.key.write(out);
            this.value.write(out);
            this.names.write(out);
            this.texts.write(out);
            return out.array();
        }
    }

    /** Values of bytes one behind the other, as Arrow has them. */
    private static final class Column {
        int n;
        int used;
        private int nulls;
        private int[] ends = new int[1025];
        private byte[] valid = new byte[128];
        private byte[] data = new byte[1024];

        void add(byte[] value) {
            if (this.n + 1 == this.ends.length) {
                this.ends = Arrays.copyOf(this.ends, 2 * this.n + 3);
                this.valid = Arrays.copyOf(this.valid, this.ends.length / 8 + 1);
            }
            if (value == null) {
                this.nulls++;
            } else {
                this.valid[this.n >> 3] |= (byte) (1 << (this.n & 7));
                if (value.length > this.data.length - this.used) {
                    this.data = Arrays.copyOf(this.data, Math.max(this.used + value.length, this.grown()));
                }
                System.arraycopy(value, 0, this.data, this.used, value.length);
                this.used += value.length;
            }
            this.ends[++this.n] = this.used;
        }

        private int grown() {
            return this.data.length > 1 << 29 ? this.data.length : 2 * this.data.length;
        }

        int size() {
            return 8 + padded(4 * (this.n + 1)) + (this.nulls > 0 ? padded((this.n + 7) / 8) : 0) + padded(this.used);
        }

        void write(ByteBuffer out) {
            out.putInt(this.nulls).putInt(this.used);
            out.asIntBuffer().put(this.ends, 0, this.n + 1);
            out.position(out.position() + padded(4 * (this.n + 1)));
            if (this.nulls > 0) {
                int at = out.position();
                out.put(this.valid, 0, (this.n + 7) / 8).position(at + padded((this.n + 7) / 8));
            }
            int at = out.position();
            out.put(this.data, 0, this.used).position(at + padded(this.used));
        }
    }

    private static int padded(int size) {
        return (size + 7) & ~7;
    }
}
